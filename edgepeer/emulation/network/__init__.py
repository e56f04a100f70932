"""The network that emulated peers live in: addresses, real cuts, rates and delays, and no trace of it afterwards."""
