package validate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// kubernetes is the version of the schemas, the newest in kubectl-validate. Newer versions accept the same objects.
const kubernetes = "1.30"

// schemas maps apiVersion and kind to the schemas of Kubernetes, the Prometheus operator and KEDA.
type schemas map[string]*jsonschema.Schema

// load loads the schemas once, from the modules listed in ../schemas.
var load = sync.OnceValues(func() (schemas, error) {
	dirs, err := modules()
	if err != nil {
		return nil, err
	}
	all := schemas{}
	builtin := filepath.Join(dirs["sigs.k8s.io/kubectl-validate"], "pkg/openapiclient/builtins", kubernetes)
	for _, group := range []string{"api/v1", "apis/apps/v1", "apis/autoscaling/v2", "apis/networking.k8s.io/v1", "apis/policy/v1"} {
		if err := all.addBuiltin(filepath.Join(builtin, filepath.FromSlash(group)+".json")); err != nil {
			return nil, err
		}
	}
	operator := filepath.Join(dirs["github.com/prometheus-operator/prometheus-operator"], "example/prometheus-operator-crd")
	for _, kind := range []string{"podmonitors", "prometheusrules", "servicemonitors"} {
		if err := all.addCustom(filepath.Join(operator, "monitoring.coreos.com_"+kind+".yaml")); err != nil {
			return nil, err
		}
	}
	if err := all.addCustom(filepath.Join(dirs["github.com/kedacore/keda/v2"], "config/crd/bases/keda.sh_scaledobjects.yaml")); err != nil {
		return nil, err
	}
	return all, nil
})

// modules returns the directories of the modules listed in ../schemas.
func modules() (map[string]string, error) {
	cmd := exec.Command("go", "mod", "download", "-json")
	cmd.Dir = "../schemas"
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go mod download: %w\n%s%s", err, &stderr, out)
	}
	dirs := map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var module struct{ Path, Dir string }
		switch err := decoder.Decode(&module); {
		case errors.Is(err, io.EOF):
			return dirs, nil
		case err != nil:
			return nil, err
		}
		dirs[module.Path] = module.Dir
	}
}

// addBuiltin adds the kinds of an OpenAPI document.
func (s schemas) addBuiltin(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	document, err := jsonschema.UnmarshalJSON(file)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	closeObjects(document)
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(path, document); err != nil {
		return err
	}
	components, _ := document.(map[string]any)["components"].(map[string]any)
	defined, _ := components["schemas"].(map[string]any)
	for name, schema := range defined {
		kinds, _ := schema.(map[string]any)["x-kubernetes-group-version-kind"].([]any)
		for _, kind := range kinds {
			k, _ := kind.(map[string]any)
			version := strings.TrimPrefix(fmt.Sprintf("%s/%s", k["group"], k["version"]), "/")
			if s[version+" "+fmt.Sprint(k["kind"])], err = compiler.Compile(path + "#/components/schemas/" + name); err != nil {
				return err
			}
		}
	}
	return nil
}

// addCustom adds the kind of a CustomResourceDefinition.
func (s schemas) addCustom(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var definition struct {
		Spec struct {
			Group    string
			Names    struct{ Kind string }
			Versions []struct {
				Name   string
				Schema struct {
					OpenAPIV3Schema map[string]any `yaml:"openAPIV3Schema"`
				}
			}
		}
	}
	if err := yaml.Unmarshal(content, &definition); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, version := range definition.Spec.Versions {
		schema, err := plain(version.Schema.OpenAPIV3Schema)
		if err != nil {
			return err
		}
		properties, _ := schema.(map[string]any)["properties"].(map[string]any)
		delete(properties, "metadata") // it is only declared as an object
		closeObjects(schema)
		properties["metadata"] = map[string]any{"type": "object"}
		compiler, id := jsonschema.NewCompiler(), path+"#"+version.Name
		if err := compiler.AddResource(path, schema); err != nil {
			return err
		}
		if s[definition.Spec.Group+"/"+version.Name+" "+definition.Spec.Names.Kind], err = compiler.Compile(path); err != nil {
			return fmt.Errorf("%s: %w", id, err)
		}
	}
	return nil
}

// closeObjects disallows unknown properties in each schema that lists properties, like strict validation on the server.
func closeObjects(node any) {
	switch node := node.(type) {
	case []any:
		for _, child := range node {
			closeObjects(child)
		}
	case map[string]any:
		_, lists := node["properties"].(map[string]any)
		_, open := node["additionalProperties"]
		if keeps, _ := node["x-kubernetes-preserve-unknown-fields"].(bool); lists && !open && !keeps {
			node["additionalProperties"] = false
		}
		for _, child := range node {
			closeObjects(child)
		}
	}
}

// plain converts a value to JSON types.
func plain(value any) (any, error) {
	document, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return jsonschema.UnmarshalJSON(bytes.NewReader(document))
}

// check validates an object against the schema of its kind.
func (s schemas) check(object map[string]any) error {
	kind := fmt.Sprintf("%s %s", object["apiVersion"], object["kind"])
	schema, ok := s[kind]
	if !ok {
		return fmt.Errorf("no schema for %s", kind)
	}
	document, err := plain(object)
	if err != nil {
		return err
	}
	return schema.Validate(document)
}

func TestSchemasAreStrict(t *testing.T) {
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		text  string
		wrong bool
	}{
		"right":            {"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 80}]}}", false},
		"an unknown field": {"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {prots: [{port: 80}]}}", true},
		"another type":     {"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: http}]}}", true},
		"deep down":        {"{apiVersion: apps/v1, kind: Deployment, spec: {selector: {}, template: {spec: {containers: [{name: a, securityContext: {runAsNonRot: true}}]}}}}", true},
		"a custom kind":    {"{apiVersion: monitoring.coreos.com/v1, kind: PodMonitor, metadata: {name: a}, spec: {selector: {}, podMetricsEndpoint: []}}", true},
		"an unknown kind":  {"{apiVersion: v1, kind: Servise}", true},
	} {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(tc.text), &object); err != nil {
			t.Fatal(err)
		}
		if err := all.check(object); (err != nil) != tc.wrong {
			t.Errorf("%s: %v", name, err)
		}
	}
}
