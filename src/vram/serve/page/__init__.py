"""The web page of ``vram serve``: one HTML file, plain modules of JavaScript, one style; nothing is built."""
