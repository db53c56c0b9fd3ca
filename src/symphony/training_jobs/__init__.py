"""Training jobs: distributed training as a gang of workers that repeats a step and can be stopped and resumed.

options           what a user says about a job          training_run     what a run does: steps, checkpoints
ground_truth ──► measured_jobs ──► measured_spec        true speeds, and workloads drawn from them
speed_samples ──► beliefs ◄── performance_model         posterior of speeds ◄── belief_learner: after every round
job_features ──► measured_jobs, live                    first estimates of speeds, from which beliefs start
beliefs ──► round_planning, planner                     assignment of the next round, by
            partial_plan ──► assignment, displacement
lengths                                                 posterior of the time left, where lengths are not told
beliefs ──► queue_rollout ──► forecast ──► job_forecast speed, start and finish of each job, with bands
closed_loop, run_forecasts                              all of it in the simulator; `live/`: in real runs
"""
