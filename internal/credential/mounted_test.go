package credential_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"lockstep/internal/credential"
)

// TestMountedSecretIsReadWhole replaces a secret as the kubelet does, again and again, while it is read: files are links
// through ..data, which is renamed to the next version before the last one is deleted.
func TestMountedSecretIsReadWhole(t *testing.T) {
	t.Parallel()
	for layout, folder := range map[string]string{"a secret for each credential": "ci", "one secret for all": "."} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			mounted := filepath.Join(dir, folder)
			publish := func(n int) error {
				version := fmt.Sprintf("..%d", n)
				at := filepath.Join(mounted, version, map[bool]string{true: "ci", false: "."}[folder == "."])
				err := os.MkdirAll(at, 0o700)
				for file, text := range map[string]string{"username": fmt.Sprint(n), "password": fmt.Sprint(n), "urls": "https://git.example.com/",
					"openpgpKeys": fmt.Sprint(n), "allowedSigners": fmt.Sprint(n)} {
					err = errors.Join(err, os.WriteFile(filepath.Join(at, file), []byte(text), 0o600))
				}
				next, link := filepath.Join(mounted, "..data_tmp"), filepath.Join(mounted, "..data")
				return errors.Join(err, os.Symlink(version, next), os.Rename(next, link), os.RemoveAll(filepath.Join(mounted, fmt.Sprintf("..%d", n-1))))
			}
			if err := publish(0); err != nil {
				t.Fatal(err)
			}
			names := []string{"username", "password", "urls", "openpgpKeys", "allowedSigners"}
			if folder == "." {
				names = []string{"ci"}
			}
			for _, name := range names {
				if err := os.Symlink(filepath.Join("..data", name), filepath.Join(mounted, name)); err != nil {
					t.Fatal(err)
				}
			}
			replace, stopped := make(chan struct{}), make(chan error, 1)
			go func() {
				var err error
				n := 0
				for range replace {
					n++
					err = errors.Join(err, publish(n))
				}
				stopped <- err
			}()
			store := credential.NewStore(dir, none)
			for range 500 {
				replace <- struct{}{} // one replacement, beside the read
				secret, err := store.Resolve(t.Context(), "ci", "https://git.example.com/a/b")
				if err != nil || secret.Username != secret.Password {
					t.Errorf("user name %q, password %q, %v", secret.Username, secret.Password, err)
					break
				}
				keys, err := store.PublicKeys("ci")
				if err != nil || keys["openpgpKeys"] != keys["allowedSigners"] {
					t.Errorf("keys %q and %q, %v", keys["openpgpKeys"], keys["allowedSigners"], err)
					break
				}
			}
			close(replace)
			if err := <-stopped; err != nil {
				t.Fatal(err)
			}
		})
	}
}
