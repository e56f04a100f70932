"""Codes for the products of a network's layers: right although rows are lost, and others are wrong without saying so.

mds.py         systematic real MDS codes for the block rows and columns of a matrix
decode.py      one decoder of all codes here, for lost and wrong rows together
tolerance.py   how far rows may disagree by rounding alone

A node is a place in a code that computes one coded block; it owns one row of what is decoded, or a group of rows. An
erasure is a row that is known to be missing. An error is a row that is wrong, and nobody says which.
"""
