package proctest

import (
	"os"
)

// With LOCKSTEP_SOAK these tests take their full length. LOCKSTEP_SEED repeats a run's pushes and kills,
// though not what the machine makes of them.
func Soaking() bool { return os.Getenv("LOCKSTEP_SOAK") != "" }
