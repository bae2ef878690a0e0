"""One file per command. Each has NAME, HELP, add_arguments(parser) and run(args) -> exit code.

A command imports what it needs inside its functions: ``vram help all`` reads all of these files.
"""
