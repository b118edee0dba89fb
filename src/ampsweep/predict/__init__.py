"""Predictions of the memory a training takes, without its device and without running it.

A prediction flows one way:

1. `target_device`: the device to predict for, a CPU or a GPU of some compute capability, which need not exist here;
2. `fake_device`: tensors with shapes, dtypes and storages but no values (`fake_kernels`, `kernel_sizes`), dispatched as
   CUDA would where CUDA is the target (`cuda_operators`, `cuda_autocast`, whose casts the installed torch's dispatcher
   names, `autocast_dispatch`);
3. `fake_training`: the user's own model, data, optimizer and trainer assembled on the fake device, and one step traced
   (`workload_prediction` takes real steps on the CPU for models that cannot run without values);
4. `timeline`: the traced step as births and deaths of allocations;
5. `step_memory`: its peak in bytes of tensors, and on CUDA as `cuda_allocator`, a model of torch's caching allocator,
   counts it; `memory_by_batch_size`: the same at any batch size, and the largest batch that fits;
6. `workload_prediction`: every precision mode of a workload, compared, and as records; `run_prediction`: one run, for
   its record and its checks; `prediction_document`: a workload as a document with the answers.
"""
