"""What groups on queues and on streams share: workers, attempts, retries, markers."""
