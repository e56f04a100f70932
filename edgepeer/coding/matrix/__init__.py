"""Codes for the products of a network's layers: right although rows are lost, and others are wrong without saying so.

mds.py            systematic real MDS codes for the block rows and columns of a matrix
decode.py         one decoder of all codes here, for lost and wrong rows together
tolerance.py      how far rows may disagree by rounding alone
polydot.py        Generalized PolyDot codes: products with a matrix in coded blocks, thresholds, encodings
nodes.py          where their polynomials are evaluated, and what the worst losses cost
sight.py          what the checks still see without the worst of the nodes
plan.py           the PolyDot code for a wish, or why it can't be had
scrub.py          finding stored weights that are wrong before anything reads them

A node is a place in a code that computes one coded block; it owns one row of what is decoded, or a group of rows. An
erasure is a row that is known to be missing. An error is a row that is wrong, and nobody says which.
"""
