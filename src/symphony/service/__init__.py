"""The service: a cluster that users share over HTTP, with a journal of all accepted jobs.

client ─► app (HTTP) ─► service ─► ledger: decides, journals, then acts ─► cluster (runtime) ─► recorder ─► engine
           wire types    tokens      state: replay of the journal                                  │
                         shares      database, blobs: storage           ◄──── engine events ───────┘
"""
