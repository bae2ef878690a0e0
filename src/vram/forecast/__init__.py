"""When a GPU will be full: how each hold grows, and what follows from that. Values in, values out."""
