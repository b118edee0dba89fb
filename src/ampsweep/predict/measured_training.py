"""A training really taken on the CPU for a step or two, for models that only values can lead through their step."""

from dataclasses import replace

from ampsweep.config.schema import Config
from ampsweep.predict.fake_device import CPU
from ampsweep.predict.timeline import Timeline, timeline
from ampsweep.tracing.step import trace_step
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.build.built import build, build_data


class MeasuredTraining:
    """Takes the place of a fake training; every trace builds the model and takes two steps."""

    def __init__(self, config: Config, model_size: int) -> None:
        self._config, self.model_size = config, model_size

    def trace(self, batch_size: int) -> Timeline:
        """The second step with this micro-batch size."""
        config = replace(self._config, data=self._config.data | {"batch_size": batch_size})
        built = build(config, CPU, build_data(config, CPU))
        trainer = assemble_trainer(config, built, CPU)
        trainer.model.train()
        begins: list[int] = []
        with built.precision.flags():
            trainer.train_step()
            with trace_step(trainer.model, trainer.optimizer) as trace:
                trainer.optimizer.register_step_pre_hook(lambda *_: begins.append(trace.moment))
                trainer.train_step()
        return timeline(trace.lives, end_of_forward=trace.end_of_forward, optimizer_step=begins[0])

    def has_batch(self, batch_size: int) -> bool:
        """Whether the data gives batches of this size."""
        config = replace(self._config, data=self._config.data | {"batch_size": batch_size})
        try:
            build_data(config, CPU).train_batch(0)
        except ValueError:
            return False
        return True
