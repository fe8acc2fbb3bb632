package dashboard

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed static
var static embed.FS

//go:embed templates
var templates embed.FS

type asset struct {
	contentType string
	hash        string
	content     []byte
	gzipped     []byte
}

type assets map[string]asset

var contentTypes = map[string]string{
	".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

func loadAssets() (assets, error) {
	all := assets{}
	err := fs.WalkDir(static, "static", func(name string, entry fs.DirEntry, err error) error {
		contentType := contentTypes[path.Ext(name)]
		if err != nil || entry.IsDir() || contentType == "" {
			return err
		}
		content, err := static.ReadFile(name)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		zip, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // fails only for an invalid level
		_, _ = zip.Write(content)                               // writing to a buffer never fails
		_ = zip.Close()
		sum := sha256.Sum256(content)
		all[strings.TrimPrefix(name, "static/")] = asset{contentType, hex.EncodeToString(sum[:6]), content, b.Bytes()}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("dashboard: load embedded files: %w", err)
	}
	return all, nil
}

// url returns the path of a file, which includes a hash of its content.
func (a assets) url(name string) (string, error) {
	file, ok := a[name]
	if !ok {
		return "", fmt.Errorf("no embedded file %s", name)
	}
	return "/dashboard/static/" + file.hash + "/" + name, nil
}

// serve serves an embedded file. It is cacheable only under the hash of its content: a page of another
// process may name another.
func (a assets) serve(w http.ResponseWriter, r *http.Request) {
	file, ok := a[r.PathValue("name")]
	if !ok {
		http.Error(w, "no such file", http.StatusNotFound)
		return
	}
	h := w.Header()
	h.Set("Content-Type", file.contentType)
	h.Set("Vary", "Accept-Encoding")
	h.Set("Cache-Control", "no-cache")
	if r.PathValue("hash") == file.hash {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	content, tag := file.content, file.hash
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		content, tag = file.gzipped, file.hash+"-gzip"
	}
	h.Set("ETag", `"`+tag+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}
