"""From one file to another: rules, plan, streams, report."""
