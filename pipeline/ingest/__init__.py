"""From the inbox to finished runs: one pass, or a service."""
