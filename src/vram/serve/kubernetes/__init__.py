"""Events in a cluster: which, how often, and the API that takes them."""
