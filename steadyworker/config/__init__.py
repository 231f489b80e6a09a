"""
Settings: the table of options (`options`), and the rule that selects the value of each option (`resolve`).

`resolve.load` checks all settings, and returns them as one frozen `Options`.
"""
