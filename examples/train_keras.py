"""Train a Keras model of your own on handwritten digits, with three peers on this machine.

Every peer sees its own third of the data. What they share is one allreduce per step, so all end with the same bits.
"""

from __future__ import annotations

import asyncio
import multiprocessing

import numpy as np

import edgepeer
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.training.keras_setup import load_keras


def train(number: int, peers: int, broker: str, steps: int) -> None:
    """One peer. On a device of its own this is the whole program, and `broker` is mqtt://broker.local."""
    keras = load_keras()  # as `import keras`, but without TensorFlow's notes about its build
    import tensorflow as tf
    from sklearn.datasets import load_digits

    order = np.random.default_rng(0).permutation(1797)
    x, y = (load_digits().images[order] / 16).astype(np.float32), load_digits().target[order]
    x_test, y_test, x, y = x[:360], y[:360], x[360 + number :: peers], y[360 + number :: peers]
    layers = keras.layers
    model = keras.Sequential([keras.Input((8, 8)), layers.Flatten(), layers.Dense(64, "relu"), layers.Dense(10)])
    optimizer, shuffle = keras.optimizers.Adam(0.01), np.random.default_rng(number)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    with edgepeer.connect(broker, "keras-example") as peer:
        peer.ready(peers)
        # All begin with peer 0's parameters: whatever has weight 0 counts for nothing.
        model.set_weights(peer.allreduce(model.get_weights(), weight=float(number == 0)).mean)
        for _ in range(steps):
            batch = shuffle.choice(len(x), 64, replace=False)
            with tf.GradientTape() as tape:
                loss = loss_of(y[batch], model(x[batch], training=True))
            gradients = [tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, model.trainable_variables)]
            # The one line that makes it distributed. The weight is the batch's size: the mean is the union's.
            outcome = peer.allreduce(gradients, weight=len(batch))
            optimizer.apply_gradients(zip(outcome.mean, model.trainable_variables, strict=True))
        accuracy = float(np.mean(model(x_test).numpy().argmax(axis=1) == y_test))
        print(f"peer {number}: accuracy {accuracy:.3f} after {steps} steps, last sum {outcome.digest}", flush=True)


async def main(peers: int, steps: int) -> None:
    async with EmbeddedBroker() as broker:  # any free port on this machine
        start = multiprocessing.get_context("spawn").Process
        fleet = [start(target=train, args=(n, peers, broker.address.url(), steps)) for n in range(peers)]
        for process in fleet:
            process.start()
        await asyncio.gather(*(asyncio.to_thread(process.join) for process in fleet))
    raise SystemExit(any(process.exitcode for process in fleet))


if __name__ == "__main__":
    asyncio.run(main(peers=3, steps=100))
