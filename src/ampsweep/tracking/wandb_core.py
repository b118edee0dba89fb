"""The wandb client's own process, wandb-core: what is raised when it or its server is lost, and how to end it."""

from contextlib import suppress


def lost_errors() -> tuple[type[Exception], ...]:
    """What wandb raises when its server or its wandb-core is gone, or the disk is full.

    Those of `wandb.sdk` have no public name in wandb 0.31: waiting for an answer of a wandb-core that has ended,
    connecting to one that is not there, and starting a run whose id it has already.
    """
    import wandb
    from wandb.sdk.lib.service.service_token import WandbServiceConnectionError
    from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError
    from wandb.sdk.mailbox.mailbox_handle import ServerResponseError

    core = (HandleAbandonedError, MailboxClosedError, ServerResponseError, WandbServiceConnectionError)
    return (wandb.Error, OSError, *core)


def first_line(error: BaseException) -> str:
    """What an error of wandb says, without the advice and links that follow."""
    lines = [line.strip() for line in str(error).splitlines()]
    if len(lines) > 2 and "validation error" in lines[0]:  # pydantic: a headline, the field, what is wrong with it
        return f"{lines[1]}: {lines[2]}"
    return lines[0] if lines else f"no answer from wandb-core, {type(error).__name__}"


def end_wandb() -> None:
    """Stop the wandb-core of this process and wait for its end; one that a parent shares with it stays."""
    import wandb

    # Where wandb-core ended with an error, wandb would exit this process with the same.
    with suppress(SystemExit, *lost_errors()):
        wandb.teardown()
