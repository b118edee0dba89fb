"""Why a training ends: done, cut short, stopped, or diverged."""
