"""A finished run as a Workflow Run RO-Crate (https://w3id.org/ro/wfrun/workflow/0.5): one zip file, without weights."""
