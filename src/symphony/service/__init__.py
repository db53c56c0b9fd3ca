"""The service: a cluster that others reach over HTTP, and that remembers what it has accepted.

client ─► app (HTTP) ─► service ─► ledger: decides, journals, then acts ─► cluster (runtime) ─► recorder ─► engine
           wire types    tokens      state: replay of the journal                                  │
                         shares      database, blobs: where it is kept  ◄── what the engine says ──┘
"""
