"""Work that posstats does in processes of its own, done in that of the tests, where it can be watched and changed."""


def in_this_process(job, tasks, _):
    """In place of `posstats.execution.parallel.in_processes`."""
    return ((task, job(task)) for task in tasks)
