"""One file per framework: how it words running out of memory, across its versions."""
