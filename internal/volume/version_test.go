package volume

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/testenv"
)

func TestNewerLayoutIsRefused(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	w := newWorld(t)
	w.open(root, Config{})
	path := filepath.Join(root, adminDir, layoutName)
	if content := string(testenv.Must(os.ReadFile(path))(t)); content != "1\n" {
		t.Errorf("the layout is %q", content)
	}
	testenv.Must(0, os.WriteFile(path, []byte("2\n"), 0o644))(t)
	_, err := OpenVolume(root, Config{})
	testenv.MustFail(t, err, events.ClassVolume, events.Permanent)
	if !strings.Contains(err.Error(), "has layout 2, but this version supports layouts up to 1: run the previous version or a newer one") {
		t.Errorf("%v", err)
	}
	testenv.Must(0, os.WriteFile(path, []byte("two"), 0o644))(t)
	_, err = OpenVolume(root, Config{})
	testenv.MustFail(t, err, events.ClassVolume, events.Permanent)
	testenv.Must(0, os.Remove(path))(t) // older versions do not write it
	w.open(root, Config{})
	if content := string(testenv.Must(os.ReadFile(path))(t)); content != "1\n" {
		t.Errorf("the layout is %q", content)
	}
}

// Fields written by a newer version survive a rewrite.
func TestBindingKeepsUnknownFields(t *testing.T) {
	t.Parallel()
	f := folder{t.TempDir()}
	testenv.Must(0, os.WriteFile(f.binding(), []byte(`{"mood":["good"],"repo":"acme/widgets","remote":"https://example.com/acme/widgets"}`), 0o644))(t)
	b, ok, err := f.readBinding()
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	b.Default = testenv.Must(events.ParseRef("main"))(t)
	testenv.Must(0, f.writeBinding(b))(t)
	const want = `{"default":"refs/heads/main","mood":["good"],"remote":"https://example.com/acme/widgets","repo":"acme/widgets"}`
	if got := strings.TrimSpace(string(testenv.Must(os.ReadFile(f.binding()))(t))); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
