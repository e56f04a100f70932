"""Small fleets, gone through exhaustively: a model checker whose model is the real machine.

canon.py    the state of a machine as a value
calls.py    what applications do in coded rounds
life.py     one life of a peer: a table of what it does in each state about each event
state.py    what is explored, and a fleet as one value
tables.py   what is known of all states alike: what peers do, who hears whom, what time does
fleet.py    what can happen to it next
draft.py    what becomes of it then
checks.py   what must be true of it
search.py   all that can become of it, those with the fewest surprises first
shared.py   the same, by several processes
telling.py  what was found, in lines
"""
