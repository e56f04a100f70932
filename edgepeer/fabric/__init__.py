"""The control plane: one MQTT connection per peer, its documents, and brokers to run on this machine."""
