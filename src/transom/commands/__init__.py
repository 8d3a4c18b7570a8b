"""The commands of the command line, one module each; `cli.py` lists them."""
