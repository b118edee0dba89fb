"""Eight trainings in which there is nothing to find, by overrides of train.py."""

_IMAGES = ("data=synthetic_images", "data.image_size=64", "data.num_classes=16", "data.batch_size=16")
_TOKENS = ("data=synthetic_tokens", "data.vocab_size=1024", "data.seq_len=128", "data.batch_size=16")

HEALTHY: dict[str, tuple[str, ...]] = {
    "gpt": ("model=gpt_tiny", "model.num_layers=4", "model.hidden_size=256", "model.num_heads=4", *_TOKENS),
    "mlp": (
        "model=mlp_small",
        "data=synthetic",
        "data.in_features=1024",
        "data.out_features=16",
        "model.hidden_size=1024",
        "data.batch_size=512",
    ),
    "resnet": ("model=resnet18", *_IMAGES),
    "bert": ("model=custom", "model._target_=healthy_models.Bert", "+model.vocab_size=1024", *_TOKENS),
    "vit": ("model=custom", "model._target_=healthy_models.VisionTransformer", "+model.num_classes=16", *_IMAGES),
    "lstm": ("model=custom", "model._target_=healthy_models.Recurrent", "+model.vocab_size=1024", *_TOKENS),
    "autoencoder": (
        "model=custom",
        "model._target_=healthy_models.Autoencoder",
        "+model.in_features=1024",
        "data=synthetic",
        "data.in_features=1024",
        "data.out_features=16",
        "data.batch_size=512",
        "task=custom",
        "task._target_=healthy_models.Copying",
    ),
    "gan": (
        "model=gan_digits",
        "data.batch_size=256",
        "model.hidden_size=128",
        "optimizer=adam",
        "optimizer.lr=2e-4",
        "trainer.max_grad_norm=null",
    ),
}
