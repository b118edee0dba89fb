"""The proof of a mode from one traced step."""

from ampsweep.observe.step import trace_step
from ampsweep.records.sections import ModeProof


def traced(precision, model, inputs):
    """Convert a model, and take a step whose loss is the mean square of what it returns."""
    model = precision.convert(model)
    with precision.flags(), trace_step(model, region=precision.region) as trace:
        with precision.autocast():
            loss = model(inputs).float().square().mean()
        precision.backward(loss)
    step = trace.result
    return precision.prove_step(step) | ModeProof(flops=step.flops, outputs=step.outputs)
