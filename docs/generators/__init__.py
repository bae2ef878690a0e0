"""One file for each part of the repository that is written by the program itself.

Each has ``pages()``, which yields paths from the repository's root and their whole text.
"""
