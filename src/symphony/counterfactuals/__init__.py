"""Why, when and what if: the future of a cluster, played in the simulator under joint samples of the belief.

snapshot (jobs, cluster, beliefs; live or journalled) ─► change ─► futures ─► answers, in words
                                                          record (forecasts against outcomes) ─► calibrated bands
"""
