"""Gradient codes: the exact sum of all chunks' gradients, or a stated approximation, although workers lag or are gone.

assignment.py  which worker has which chunks, in what order
code.py        what every code has; what can be had of what is computed
encode.py      encoding and expanding of vectors
weighing.py    what chunks count for
computed.py    what one peer has computed of a round
wait.py        when a round may be closed
spec.py        codes by name
scheme.py      a code and a policy: how the rounds of a run are coded

linear.py      all of a worker's chunks or nothing, decoded by least squares
nearest.py     the best of too few workers' vectors
cyclic.py, fractional.py, regular.py, uncoded.py, first.py
spread.py      columns that are far from dependent
partial.py     what slow workers have done counts, too
ordering.py    in what order to compute
graphs.py      random regular graphs
coded_reduce.py, tree_allocation.py, siblings.py: a code in each family of a tree
speed.py       how long a device takes for a chunk

matrix/        codes for products with a matrix, which survive wrong rows as well as missing ones

A chunk is a part of the data set. A worker is a place in a code; which peer it is says the view.
"""
