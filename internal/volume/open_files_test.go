package volume

import (
	"fmt"
	"os"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/testenv"
)

// TestFilesAreClosed repeats all operations and checks that the number of open files does not grow.
func TestFilesAreClosed(t *testing.T) {
	w := newWorld(t)
	w.volume = w.open(t.TempDir(), Config{Grace: 1})
	w.create(map[string]string{"a": "0", "dir/b": "0"})
	round := func(i int) {
		w.push(map[string]string{"a": fmt.Sprint(i)})
		w.syncDepth("", events.Depth(1+i%3))
		if _, err := w.trySync("nowhere"); err == nil {
			t.Error("a ref that is not there was synced")
		}
		w.prepare()
		w.gc(true)
		w.verify(true)
	}
	first := testenv.Form(3, 5)
	for i := range first {
		round(i)
	}
	before := openFiles(t)
	for i := range testenv.Form(6, 15) {
		round(first + i)
	}
	now := openFiles(t)
	for deadline := time.Now().Add(30 * time.Second); now > before+5 && time.Now().Before(deadline); now = openFiles(t) {
		time.Sleep(time.Millisecond) // connections and pipes of the server that have just ended
	}
	if now > before+5 {
		t.Errorf("%d files are open, and %d were", now, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	return len(testenv.Must(os.ReadDir("/proc/self/fd"))(t))
}
