"""Small models trained in the pipeline: data, models, one loop on transformers.Trainer, snapshots."""
