"""The commands of `bertjax`, a page each: one function that the command line runs and `import bertjax` offers.

`signatures` reads its flags and help from the source; `arguments` has the types that pages share.
"""
