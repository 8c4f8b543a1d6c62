"""The Neural Engine: plans, facts and the backend."""
