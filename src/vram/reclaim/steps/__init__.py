"""The rungs, one file each. A step is four verbs; choosing is the planner's."""
