"""SkipStepAdamW and learning-rate schedules."""
