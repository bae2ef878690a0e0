"""Every claim about GPU memory as an experiment on the machine at hand."""
