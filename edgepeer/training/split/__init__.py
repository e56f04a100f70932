"""Split training: a dense network whose layers are divided over many machines, right although some of them err.

network.py    the network: sizes, activations, loss, how it is trained, and its weights before, row by row
activations.py  activations, and their slopes
sparsity.py   the term of a sparse autoencoder
strategy.py   what a way to divide a matrix has to say: what nodes store, send, and how the sum is read
uncoded.py    blocks, and nothing else
codenet.py    CodeNet: MDS codes over block rows and block columns
replicate.py  every block at several nodes
polydot.py    Generalized PolyDot codes
abft.py       blocks with their own checksums
named.py      all of them by name
cell.py       one node: its blocks, and what it makes of them
passing.py    one batch on its way through the network and back
program.py    one peer's part in a run: what to bring to the next round, and what its sum means
phases.py     what rounds are for
muster.py     who is there with what, at the start and after a restore
vectors.py    how the vector of each round is laid out
tail.py       what stands at its end: what nodes hold, and checksums against damage on the way
common.py     what all peers have in common, for those who join
counts.py     what happened
faults.py     soft errors on purpose, and a record of them
dense.py      the network of a job
keras_config.py  the layers of a Keras model that is described as JSON
part.py       one node's blocks on their way to a checkpoint, or to whoever wants the model
assembly.py   whole matrices again, from blocks
export.py     whole matrices, as models are saved
whole.py      the trained model, from the parts of its peers
fleet.py      all peers in one process, for experiments

One step, which is the product of one layer in one direction, is one round of the tree. Each peer contributes a vector
in which each coded line has a slot; all get the same sum. Then every peer checks, decodes, applies the activation and
encodes for itself, so all go on with the same numbers, and no machine's word is taken for anything. An iteration has
two rounds a layer. No peer ever holds a whole matrix.
"""
