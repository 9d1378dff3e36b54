using System;
using System.Globalization;
using System.Net;
using System.Text;
using System.Threading;
using System.Threading.Tasks;
using Microsoft.AspNetCore.Builder;
using Microsoft.AspNetCore.Hosting;
using Microsoft.AspNetCore.Hosting.Server;
using Microsoft.AspNetCore.Hosting.Server.Features;
using Microsoft.AspNetCore.Http;
using Microsoft.Extensions.DependencyInjection;
using Microsoft.Extensions.Hosting;
using Microsoft.Extensions.Logging;

namespace Workloads
{
    /// <summary>
    /// A web server: ASP.NET Core's Kestrel on a free port of the loopback,
    /// which it prints. GET /plain, /json, /cart, /regex, /nullref and /burn with ?n=N
    /// answer a text that depends on N alone; /cpu answers the CPU time in
    /// nanoseconds and the number of requests so far. It ends at /stop, or when
    /// its standard input does.
    /// </summary>
    public static class WebServer
    {
        private static long requests;

        public static async Task<int> Main(string[] args)
        {
            var run = new Run(args);
            WebApplicationBuilder builder = WebApplication.CreateSlimBuilder(
                new WebApplicationOptions { ContentRootPath = AppContext.BaseDirectory });
            builder.Logging.ClearProviders();
            builder.WebHost.ConfigureKestrel(options => options.Listen(IPAddress.Loopback, 0));
            builder.Services.AddSingleton<Carts>();
            builder.Services.AddSingleton<Burning>();
            WebApplication app = builder.Build();
            var carts = app.Services.GetRequiredService<Carts>();
            var burning = app.Services.GetRequiredService<Burning>();
            app.MapGet("/plain", context => Answer(context, n => "plain " + n));
            app.MapGet("/json", context => Answer(context, Json.RoundTrip));
            app.MapGet("/regex", context => Answer(context, Texts.CountMatches));
            app.MapGet("/nullref", context => Answer(context, Faults.CatchNullReference));
            app.MapGet("/cart", async context => await Write(context, await carts.CheckOut(Number(context))));
            app.MapGet("/burn", async context => await Write(context, await burning.Serve(Number(context))));
            app.MapGet("/cpu", context => Write(context, Clock.ProcessCpu() + " " + Interlocked.Read(ref requests)));
            app.MapGet("/stop", async context =>
            {
                await Write(context, "stopping");
                app.Lifetime.StopApplication();
            });
            await app.StartAsync();
            foreach (string address in app.Services.GetRequiredService<IServer>().Features.Get<IServerAddressesFeature>().Addresses)
            {
                Console.WriteLine("port " + new Uri(address).Port.ToString(CultureInfo.InvariantCulture));
            }
            Console.Out.Flush();
            var input = new Thread(() =>
            {
                while (Console.In.Read() >= 0)
                {
                }
                app.Lifetime.StopApplication();
            });
            input.IsBackground = true;
            input.Start();
            await app.WaitForShutdownAsync();
            await carts.End();
            await burning.End();
            Run.Result("served", "all");
            Run.Measured("requests", Interlocked.Read(ref requests));
            run.End();
            return 0;
        }

        private static int Number(HttpContext context) => int.Parse(context.Request.Query["n"], CultureInfo.InvariantCulture);

        private static Task Answer(HttpContext context, Func<int, string> how) => Write(context, how(Number(context)));

        private static async Task Write(HttpContext context, string text)
        {
            Interlocked.Increment(ref requests);
            byte[] bytes = Encoding.UTF8.GetBytes(text);
            context.Response.ContentType = "text/plain";
            context.Response.ContentLength = bytes.Length;
            await context.Response.Body.WriteAsync(bytes);
        }
    }
}
