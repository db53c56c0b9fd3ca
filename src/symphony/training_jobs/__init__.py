"""Training jobs: distributed training as a gang of workers that repeats a step and can be stopped and resumed.

options           what a user says about a job          training_run     what a run does: steps, checkpoints
ground_truth ──► measured_jobs ──► measured_spec        true speeds, and workloads drawn from them
speed_samples ──► performance_model ──► beliefs ◄── belief_learner, initial_beliefs, job_features
beliefs ──► round_planning, planner (assignment | placer, exploration) ──► who runs where in the next round
beliefs ──► queue_rollout ──► forecast                  speed, start and end of each job, with bands
closed_loop, run_forecasts                              all of it in the simulator; `live/`: in real runs
placer_training                                         training of the learned placer
"""
