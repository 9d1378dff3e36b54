// Collector with an OTLP receiver and an exporter that writes the profiles it gets into a folder,
// each request as a file of protobuf. Used by `cargo xtask fleet`.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync/atomic"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/xexporter"
	"go.opentelemetry.io/collector/featuregate"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry"
)

type folderConfig struct {
	Path string `mapstructure:"path"`
}

type folder struct {
	path string
	next atomic.Int64
}

func (*folder) Start(context.Context, component.Host) error { return nil }
func (*folder) Shutdown(context.Context) error              { return nil }
func (*folder) Capabilities() consumer.Capabilities         { return consumer.Capabilities{} }

func (f *folder) ConsumeProfiles(_ context.Context, profiles pprofile.Profiles) error {
	bytes, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(profiles)
	if err != nil {
		return err
	}
	name := filepath.Join(f.path, fmt.Sprintf("%d-%06d", os.Getpid(), f.next.Add(1)))
	if err := os.WriteFile(name+".part", bytes, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".part", name+".otlp")
}

func newFolder(_ context.Context, _ exporter.Settings, config component.Config) (xexporter.Profiles, error) {
	return &folder{path: config.(*folderConfig).Path}, nil
}

func main() {
	if err := featuregate.GlobalRegistry().Set("service.profilesSupport", true); err != nil {
		log.Fatal(err)
	}
	info := component.BuildInfo{Command: "collector", Version: "0.165.0"}
	factories := func() (otelcol.Factories, error) {
		folderType := component.MustNewType("folder")
		receivers, err := otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory())
		if err != nil {
			return otelcol.Factories{}, err
		}
		exporters, err := otelcol.MakeFactoryMap[exporter.Factory](xexporter.NewFactory(
			folderType,
			func() component.Config { return &folderConfig{} },
			xexporter.WithProfiles(newFolder, component.StabilityLevelDevelopment),
		))
		// It says nothing about itself.
		silent := telemetry.NewFactory(func() component.Config { return &struct{}{} })
		return otelcol.Factories{Receivers: receivers, Exporters: exporters, Telemetry: silent}, err
	}
	settings := otelcol.CollectorSettings{
		BuildInfo: info,
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{
			ResolverSettings: confmap.ResolverSettings{
				URIs:              []string{os.Args[1]},
				ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
				DefaultScheme:     "file",
			},
		},
	}
	collector, err := otelcol.NewCollector(settings)
	if err != nil {
		log.Fatal(err)
	}
	if err := collector.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
