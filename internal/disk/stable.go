package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const maxSecret = 64 << 10 // bytes

// ReadSecret returns the content of a file without the white space around it. It fails if the file is empty.
func ReadSecret(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxSecret))
	if err != nil {
		return "", err
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return secret, nil
}

const stableTries = 20 // about 200 ms in all

// ReadStable calls read, which reads files below dir, until dir was not replaced during the call, and returns
// its error. Kubernetes replaces a mounted secret as a whole: it points the link dir/..data, or a link on the
// path of dir, at a new folder and then deletes the old one. Without ReadStable, a reader may find a file
// missing or mix both versions. If dir does not exist, read is called once. read may be called several times
// and must overwrite all earlier results.
func ReadStable(dir string, read func() error) error {
	for try := range stableTries {
		time.Sleep(time.Duration(try) * time.Millisecond)
		before, at, err := openVersion(dir)
		if errors.Is(err, errReplaced) {
			continue
		}
		if err != nil {
			return err
		}
		if before == nil {
			return read()
		}
		result := read()
		same := sameVersion(before, at)
		_ = before.Close()
		if same {
			return result
		}
	}
	return fmt.Errorf("%s is a broken link, or is replaced again and again", dir)
}

var errReplaced = errors.New("replaced")

// openVersion opens the folder that holds the current files of dir, which keeps its inode number from being reused. It
// returns nil if dir does not exist, and errReplaced if a link on the path leads nowhere.
func openVersion(dir string) (version *os.File, at string, err error) {
	for _, at := range []string{filepath.Join(dir, "..data"), dir} {
		version, err := os.Open(at)
		if err == nil {
			return version, at, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			if at == dir {
				return nil, "", err
			}
			continue
		}
		if _, err := os.Lstat(at); err == nil {
			return nil, "", errReplaced
		}
	}
	return nil, "", nil
}

func sameVersion(version *os.File, at string) bool {
	before, err := version.Stat()
	if err != nil {
		return false
	}
	after, err := os.Stat(at)
	return err == nil && os.SameFile(before, after)
}
