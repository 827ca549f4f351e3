"""Everything that turns a config into objects and runs them: build, pretrain, finetune, work directory, stored runs."""
