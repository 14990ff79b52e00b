"""The stages that a pass is made of: what each thread does of one, called by address.

A stage is a row of the program (`table.py`): the function, a table, and the stage's own operands.
An entry takes the addresses of the table and the row, and the thread. Every thread of the team
calls it; between two stages they meet.
"""
