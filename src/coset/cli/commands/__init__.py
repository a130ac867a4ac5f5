"""One command of `coset` a file: the function of the file's name, with its options, its help, examples and work.

A folder is a group of commands. Libraries are imported within functions, so that help does not wait for torch.
"""
