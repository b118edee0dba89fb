"""A training that takes real steps on the CPU, for models that cannot be traced without values."""

from dataclasses import replace

from ampsweep.config.schema import Config
from ampsweep.predict.fake_device import CPU
from ampsweep.predict.timeline import Timeline, timeline
from ampsweep.tracing.step import trace_step
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.build.built import build, build_data


class MeasuredTraining:
    """A training that stands in for `FakeTraining`; every trace builds the model and takes two steps."""

    def __init__(self, config: Config, model_size: int) -> None:
        self._config, self.model_size = config, model_size

    def trace(self, batch_size: int) -> Timeline:
        """Trace the second step with this micro-batch size."""
        config = replace(self._config, data=self._config.data | {"batch_size": batch_size})
        built = build(config, CPU, build_data(config, CPU))
        trainer = assemble_trainer(config, built, CPU)
        trainer.model.train()
        begins: list[int] = []
        with built.precision.flags():
            trainer.train_step()
            with trace_step(trainer.model, *built.optimizers.values()) as trace:
                for optimizer in built.optimizers.values():
                    optimizer.register_step_pre_hook(lambda *_: begins.append(trace.ledger.moment))
                trainer.train_step()
        return timeline(trace.ledger.lives(), end_of_forward=trace.ledger.marked_moment, optimizer_step=begins[0])

    def has_batch(self, batch_size: int) -> bool:
        """Tell whether the data has batches of this size."""
        config = replace(self._config, data=self._config.data | {"batch_size": batch_size})
        try:
            build_data(config, CPU).train_batch(0)
        except ValueError:
            return False
        return True
