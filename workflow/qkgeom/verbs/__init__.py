"""The command line's verbs, one module each with a function `command`; rules of the pipeline carry their names."""
